// How SSH writes bytes down: strings behind their length in its messages and keys (RFC 4251 section
// 5), base64 in its files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace dstrain::launcher {

/// Takes a number (four bytes, highest first) off the front of an SSH message; nothing if the
/// message ends before it does.
std::optional<std::uint32_t> take_ssh_number(std::string_view& message);
/// Takes a string (its length as a number, and so many bytes) off the front of an SSH message;
/// empty if the message ends before it does.
std::string_view take_ssh_string(std::string_view& message);

std::string to_base64(std::string_view bytes);
/// Line ends are passed over. Empty where the text is not base64.
std::string from_base64(std::string_view text);

}  // namespace dstrain::launcher
