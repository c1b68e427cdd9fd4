#include "engine/config/rope_block.h"

#include <fmt/format.h>

namespace dstrain {
namespace {

const JsonNode& required(const std::string& path, const JsonNode& block, const char* name) {
  const JsonNode* node = block.find(name);
  if (node == nullptr) {
    throw_config_error(block.where, path, fmt::format("\"{}\" is missing", name));
  }
  return *node;
}

double positive_number(const std::string& path, const JsonNode& node) {
  // Written so that a NaN is refused too.
  if (!node.is(JsonNode::Kind::kNumber) || !(node.number > 0.0 && node.number <= kMostOfRope)) {
    throw_config_error(node.where, path,
                       fmt::format("must be a number greater than 0 and at most {:g}, found {}",
                                   kMostOfRope, node.describe()));
  }
  return node.number;
}

}  // namespace

bool says(const JsonNode& block, const char* name) {
  const JsonNode* node = block.find(name);
  return node != nullptr && !node->is(JsonNode::Kind::kNull);
}

double positive(const std::string& path, const JsonNode& block, const char* name) {
  return positive_number(path + "." + name, required(path, block, name));
}

double positive_or(const std::string& path,
                   const JsonNode& block,
                   const char* name,
                   double otherwise) {
  return says(block, name) ? positive(path, block, name) : otherwise;
}

std::vector<double> positive_list(const std::string& path,
                                  const JsonNode& block,
                                  const char* name) {
  const JsonNode& node = required(path, block, name);
  const std::string list_path = path + "." + name;
  if (!node.is(JsonNode::Kind::kArray)) {
    throw_config_error(node.where, list_path,
                       "must be a list of numbers, found " + node.describe());
  }
  std::vector<double> numbers;
  for (const JsonNode& item : node.items)
    numbers.push_back(positive_number(list_path, item));
  return numbers;
}

}  // namespace dstrain
