# Prints a lock without torch, torchvision and what only their CUDA builds require.
/^[a-z]/ { kept = $1 !~ /^(torch|torchvision|triton|cuda-.*|nvidia-.*)==/ }
kept
