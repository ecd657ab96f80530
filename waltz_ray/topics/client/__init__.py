"""What programs of ours ask topic actors and the spaces behind them: what ``waltz topic`` is made of."""
