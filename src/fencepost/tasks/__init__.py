"""Run work beside the caller: a task that ends with its block, and a loop that outlives failures."""
