"""Backup and restore of a cluster that runs: docs/backup.md. Nothing is imported here."""
