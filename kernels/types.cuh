// The integers that kernels and their runtime on the host speak of.
#pragma once

namespace ld {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i32 = int;
using i64 = long long;

}  // namespace ld
