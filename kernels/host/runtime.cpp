// The library that runs compiled kernels: everything that does not depend on one of them.
#include "../types.cuh"

#include "launch.h"
