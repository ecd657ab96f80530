"""Hostile bytes for everything that reads bytes: ``make fuzz``. What has been found interesting is kept in corpus/."""
