// What a block of rotary keys holds: numbers, each checked, with the block's path in every error.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/config/json_text.h"
#include "engine/config/model_spec.h"

namespace dstrain {

/// The values of such a block.
struct RopeBlock {
  RopeScaling scaling;
  std::optional<double> theta{};
  std::optional<double> rotated_part{};
  bool by_layer = false;                 ///< it says something of both kinds of layers
  std::optional<double> window_theta{};  ///< of layers with a window
};

/// The largest number in such a block: far beyond any model's, and an integer of 64 bits.
inline constexpr double kMostOfRope = 1e12;

/// Whether the block has a value there other than null.
bool says(const JsonNode& block, const char* name);
/// A number above 0, which must be there.
double positive(const std::string& path, const JsonNode& block, const char* name);
/// Where it may be absent.
double positive_or(const std::string& path,
                   const JsonNode& block,
                   const char* name,
                   double otherwise);
/// A list of such numbers, which must be there.
std::vector<double> positive_list(const std::string& path, const JsonNode& block, const char* name);

}  // namespace dstrain
