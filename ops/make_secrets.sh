#!/bin/sh
# Makes the secrets of ops/compose.yaml in ops/secrets/, each once; existing files are kept.
set -eu
cd "$(dirname "$0")"
umask 077
mkdir -p secrets

random() { od -An -N32 -tx1 /dev/urandom | tr -d ' \n'; }

put() {
    # The folder keeps other users out; the user of the container must be able to read the file.
    [ -e "secrets/$1" ] || { printf %s "$2" > "secrets/$1" && chmod 0444 "secrets/$1" && echo "made ops/secrets/$1"; }
}

put jwt_secret "$(random)"
put journal_key "$(random)"
put bus_key "$(random)"
put postgres_password "$(random)"
put grafana_password "$(random)"
put database_url "postgresql://switchyard:$(cat secrets/postgres_password)@postgres:5432/switchyard"
