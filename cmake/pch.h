// The only precompiled header with torch/torch.h, for files that include it anyway.
#pragma once

#include <torch/torch.h>
