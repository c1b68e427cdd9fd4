// Wire: values as bytes and back, little-endian on every machine: single numbers, and structs by
// their list of fields.
//
//   integer   its own width          bool     one byte, 0 or 1
//   string    u32 length, bytes      vector   u32 count, elements
//   pair      first, second          struct   its fields, in the order of pass_fields()
//   optional  bool, then the value   enum, duration   their number
//
// One list of fields serves both directions:
//   struct Started {
//     std::int32_t rank = 0;
//     template <typename Wire> void pass_fields(Wire& wire) { wire(rank); }
//   };
// Reading trusts nothing: every length is held against the bytes that are left before anything is
// made of it, so that the memory taken is bounded by the message.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace dstrain {

/// Appends a number in as many bytes as it has.
template <typename T>
void put_number(std::string& bytes, T value) {
  static_assert(std::is_integral_v<T> || std::is_enum_v<T>);
  auto bits = static_cast<std::uint64_t>(value);
  for (std::size_t i = 0; i < sizeof(T); ++i, bits >>= 8)
    bytes.push_back(static_cast<char>(bits & 0xFF));
}

/// Takes a number off the front of `bytes`, which must be long enough.
template <typename T>
T take_number(std::string_view& bytes) {
  static_assert(std::is_integral_v<T> || std::is_enum_v<T>);
  std::uint64_t bits = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i)
    bits |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  bytes.remove_prefix(sizeof(T));
  return static_cast<T>(bits);
}

/// Thrown when what came over the wire is not what was agreed on. what() is a clause: "a string of
/// 70 bytes where 3 are left".
class ProtocolError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class WireWriter {
 public:
  template <typename... Values>
  void operator()(Values&... values) {
    (put(values), ...);
  }
  [[nodiscard]] const std::string& bytes() const { return bytes_; }
  std::string take() { return std::move(bytes_); }

 private:
  template <typename T>
  void put(T& value) {
    if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) {
      put_number(bytes_, value);
    } else {
      value.pass_fields(*this);
    }
  }
  void put(std::string& text) {
    put_size(text.size());
    bytes_ += text;
  }
  template <typename A, typename B>
  void put(std::pair<A, B>& pair) {
    (*this)(pair.first, pair.second);
  }
  template <typename Rep, typename Period>
  void put(std::chrono::duration<Rep, Period>& time) {
    put_number(bytes_, time.count());
  }
  template <typename T>
  void put(std::optional<T>& value) {
    put_number(bytes_, value.has_value());
    if (value) put(*value);
  }
  template <typename T>
  void put(std::vector<T>& elements) {
    put_size(elements.size());
    for (T& element : elements)
      put(element);
  }
  void put_size(std::size_t size) {
    if (size > std::numeric_limits<std::uint32_t>::max()) throw ProtocolError("more than 4 GiB");
    auto narrow = static_cast<std::uint32_t>(size);
    put(narrow);
  }

  std::string bytes_;
};

class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : left_(bytes) {}

  template <typename... Values>
  void operator()(Values&... values) {
    (get(values), ...);
  }
  /// Throws ProtocolError if something is left.
  void end() const {
    if (!left_.empty()) {
      throw ProtocolError(std::to_string(left_.size()) + " bytes after the end of a message");
    }
  }

 private:
  template <typename T>
  void get(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      const auto byte = static_cast<unsigned char>(take(1).front());
      if (byte > 1) throw ProtocolError("a yes or no of " + std::to_string(byte));
      value = byte == 1;
    } else if constexpr (std::is_integral_v<T> || std::is_enum_v<T>) {
      std::string_view bytes = take(sizeof(T));
      value = take_number<T>(bytes);
    } else {
      value.pass_fields(*this);
    }
  }
  void get(std::string& text) { text = take(size()); }
  template <typename A, typename B>
  void get(std::pair<A, B>& pair) {
    (*this)(pair.first, pair.second);
  }
  template <typename Rep, typename Period>
  void get(std::chrono::duration<Rep, Period>& time) {
    Rep count{};
    get(count);
    time = std::chrono::duration<Rep, Period>(count);
  }
  template <typename T>
  void get(std::optional<T>& value) {
    bool has_value = false;
    get(has_value);
    value.reset();
    if (has_value) get(value.emplace());
  }
  template <typename T>
  void get(std::vector<T>& elements) {
    const std::size_t count = size();
    // Every element takes a byte or more.
    if (count > left_.size()) throw too_long("a list", count, "elements");
    elements.clear();
    for (std::size_t i = 0; i < count; ++i)
      get(elements.emplace_back());
  }
  std::size_t size() {
    std::uint32_t value = 0;
    get(value);
    return value;
  }
  std::string_view take(std::size_t size) {
    if (size > left_.size()) throw too_long("a value", size, "bytes");
    const std::string_view taken = left_.substr(0, size);
    left_.remove_prefix(size);
    return taken;
  }
  [[nodiscard]] ProtocolError too_long(const char* what, std::size_t size, const char* unit) const {
    return ProtocolError(std::string(what) + " of " + std::to_string(size) + " " + unit +
                         " where " + std::to_string(left_.size()) + " bytes are left");
  }

  std::string_view left_;
};

}  // namespace dstrain
