"""What happens between the chunks of a run: each hook sees an event, and may ask the run to stop."""
