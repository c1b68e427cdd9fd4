#include "engine/config/config_keys.h"

#include <algorithm>

namespace dstrain {

const std::vector<Key>& all_keys() {
  static const std::vector<Key> keys = [] {
    std::vector<Key> all;
    const auto add = [&](const std::vector<Key>& part) {
      all.insert(all.end(), part.begin(), part.end());
    };
    for (const auto& part :
         {batch_keys(), elasticity_keys(), precision_keys(), zero_keys(), recompute_keys(),
          optimizer_keys(), rate_keys(), scheduler_keys(), curriculum_keys(), parallel_keys(),
          reporting_keys(), monitor_keys(), deepspeed_ignored_keys()}) {
      add(part);
    }
    for (Key& key : all) {
      if (key.auto_rule == AutoRule::kError) key.auto_rule = AutoRule::kDefault;
      key.null_is_absent = true;
    }
    add(model_keys());
    add(run_keys());
    add(peft_keys());
    add(quantization_keys());
    add(preference_keys());
    add(grpo_keys());
    add(ppo_keys());
    return all;
  }();
  return keys;
}

const JsonNode* find_path(const JsonNode& root, const std::string& path) {
  const JsonNode* node = &root;
  for (std::size_t begin = 0; node != nullptr && begin <= path.size();) {
    const std::size_t dot = std::min(path.find('.', begin), path.size());
    node = node->find(std::string_view(path).substr(begin, dot - begin));
    begin = dot + 1;
  }
  return node;
}

bool WrittenKeys::mentions(const std::string& path) const {
  return find_path(root_, path) != nullptr;
}

std::string WrittenKeys::where(const std::string& path) const {
  if (const auto found = nodes_.find(path); found != nodes_.end()) return found->second->where;
  for (std::size_t dot = path.rfind('.'); dot != std::string::npos;
       dot = path.rfind('.', dot - 1)) {
    const JsonNode* block = find_path(root_, path.substr(0, dot));
    if (block != nullptr) return block->where;
    if (dot == 0) break;
  }
  return root_.where;
}

std::string WrittenKeys::origin(const std::string& path) const {
  const auto found = nodes_.find(path);
  if (found == nodes_.end()) return "";
  return is_override(*found->second) ? "--set" : found->second->where;
}

}  // namespace dstrain
