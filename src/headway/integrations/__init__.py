"""For trainers that need more of Headway than a call in their loop. Each file needs its trainer's package; nothing imports it."""
