"""Traces to an OpenTelemetry collector, by OTLP over HTTP. Imported by `bootstrap`, and only if traces are on."""
