// Where in a kernel's text a primitive is called.
#pragma once

namespace ld {

struct Site {
    const char* file;
    unsigned line;
    bool operator==(const Site& other) const { return file == other.file && line == other.line; }
};

}  // namespace ld
