"""DeepInfer backend ``counting``. Empty on purpose: listing plugins must cost nothing."""
