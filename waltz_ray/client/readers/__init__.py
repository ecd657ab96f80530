"""Ranges of the log as Arrow columns, for those who read in parallel: Spark's tasks, Ray Data's, the stream services.

A ``Reading`` says what of which cluster; ``plan_reading`` cuts it into ranges; ``Reading.batches`` reads them. Plain
blocking sockets, no Ray, no Spark. Nothing is imported here: ``waltz_ray.client`` can do without Arrow.
"""
