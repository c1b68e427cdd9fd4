#include "cmd/launch/facts_text.h"

#include <stdexcept>

#include <nlohmann/json.hpp>

namespace dstrain {

std::string to_text(const MachineFacts& facts) {
  nlohmann::ordered_json json = {{"cuda", facts.cuda},
                                 {"name", facts.name},
                                 {"multiplies_bf16", facts.multiplies_bf16},
                                 {"multiplies_f16", facts.multiplies_f16}};
  if (facts.memory_bytes) json["memory_bytes"] = *facts.memory_bytes;
  if (facts.ranks_per_host) json["ranks_per_host"] = *facts.ranks_per_host;
  return json.dump();
}

MachineFacts parse_facts(std::string_view text) {
  try {
    const auto json = nlohmann::json::parse(text);
    MachineFacts facts{.cuda = json.at("cuda").get<bool>(),
                       .name = json.at("name").get<std::string>(),
                       .multiplies_bf16 = json.at("multiplies_bf16").get<bool>(),
                       .multiplies_f16 = json.at("multiplies_f16").get<bool>()};
    if (const auto bytes = json.find("memory_bytes"); bytes != json.end()) {
      facts.memory_bytes = bytes->get<std::int64_t>();
    }
    if (const auto ranks = json.find("ranks_per_host"); ranks != json.end()) {
      facts.ranks_per_host = ranks->get<int>();
    }
    return facts;
  } catch (const nlohmann::json::exception& error) {
    throw std::invalid_argument(std::string("expected what dstrain launch writes: ") +
                                error.what());
  }
}

}  // namespace dstrain
