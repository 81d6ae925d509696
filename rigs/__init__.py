"""Programs that attack, measure or draw for hours; tests run short parts of them."""
