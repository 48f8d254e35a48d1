"""Define the values and rules of transactions, fees and confirmations, without I/O, clock or randomness."""
