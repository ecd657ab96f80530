"""What layers fold from the log, kept in local files: caches, which a restart goes on from and anybody may delete."""
