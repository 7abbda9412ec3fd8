"""What a run will take, and whether its inputs and this machine can give it: memory, hours, disk, servers."""
