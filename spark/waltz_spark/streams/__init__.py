"""The stream services: minute files become published streams, every record exactly once. See docs/streams.md.

``layout`` says what lies where and what a collector leaves, ``settings`` what a service is told, ``services`` runs it.
No module here imports pyspark: a file system that needs a JVM is given one (``hadoop_files``).
"""
