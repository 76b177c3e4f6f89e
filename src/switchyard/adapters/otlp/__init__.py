"""Traces to an OpenTelemetry collector, by OTLP over HTTP. Imported only where traces are on."""
