// The one precompiled header, for files that include torch/torch.h anyway.
#pragma once

#include <torch/torch.h>
