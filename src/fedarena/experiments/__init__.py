"""Which experiments run, and which algorithm wins? One run, many runs side by side, and tuning."""
