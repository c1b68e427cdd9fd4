// Tells one build of dstrain, or one copy of a file, from another by a hash of the bytes.
#pragma once

#include <cstdint>
#include <string>

namespace dstrain {

/// XXH3 of a file's content. Throws std::runtime_error, naming the file.
std::uint64_t hash_of_file(const std::string& path);

/// "0.1.0"
std::string own_version();
/// The path of the running program.
std::string own_program();
/// The hash of the running program, as 16 hexadecimal digits: the same on hosts that run the same
/// build.
std::string own_build_id();

}  // namespace dstrain
