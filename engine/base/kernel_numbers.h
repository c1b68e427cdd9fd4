// Numbers in the kernel's text files, below /proc and /sys.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

namespace dstrain {

/// The number that a file begins with, at most that of std::int64_t; nothing for "max", other text
/// or no file.
std::optional<std::int64_t> number_in(const std::filesystem::path& file);

/// The number behind `key` in a file of lines "key number"; nothing where there is none.
std::optional<std::int64_t> number_after(const std::filesystem::path& file, std::string_view key);

}  // namespace dstrain
