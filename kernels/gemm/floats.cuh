// The bits of floats.
#pragma once
#include "device.cuh"

namespace ld {

LD_DEVICE u32 bits_of(float value) {
    u32 made;
    memcpy(&made, &value, 4);
    return made;
}

LD_DEVICE float float_of(u32 bits) {
    float made;
    memcpy(&made, &bits, 4);
    return made;
}

}  // namespace ld
