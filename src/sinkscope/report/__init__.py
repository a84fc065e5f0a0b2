"""Reports of what was recorded and measured: figures for papers."""
