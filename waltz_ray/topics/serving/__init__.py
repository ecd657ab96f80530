"""What serves topics: the ports that clients connect to, and the slots behind them. docs/tubemq.md.

| module | what |
|---|---|
| ``topic_log`` | the log of one topic: records appended under the lock of their slot, partitions followed and read |
| ``tail`` | what the last records of a partition were, in memory |
| ``slot_partition`` | one partition of one topic: who has it, what is appended, what is read |
"""
