"""What serves topics: the ports that clients connect to, and the slots behind them. docs/tubemq.md.

| module | what |
|---|---|
| ``topic_log`` | the log of one topic: records appended under the lock of their slot, partitions followed and read |
| ``tail`` | what the last records of a partition were, in memory |
| ``partition_fold`` | what is known of one partition, from its feed |
| ``slot_partition`` | one partition of one topic: who has it, what is appended, what is read |
| ``served_topic``, ``topic_node`` | the partitions of one topic, and all slots of one actor with their ports |
| ``gateway``, ``connection``, ``port`` | a port, its connections, and what it asks of what is behind it |
| ``slot_port`` | what clients say to a broker |
| ``deliveries``, ``batch_reading``, ``offsets`` | what groups consume, how it is read, where they are |
"""
