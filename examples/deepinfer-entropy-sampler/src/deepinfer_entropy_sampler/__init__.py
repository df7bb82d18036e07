"""DeepInfer sampler ``entropy``. Empty on purpose: listing plugins must cost nothing."""
