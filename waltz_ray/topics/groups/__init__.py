"""The master of topics, pure: producers, consumer groups, who has which partition. docs/tubemq.md."""
