"""NATS JetStream: streams as a source and as a sink."""
