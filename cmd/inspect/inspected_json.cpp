#include "cmd/inspect/inspected_json.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include <nlohmann/json.hpp>

namespace dstrain {
namespace {

using Json = nlohmann::ordered_json;

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json();
}

std::string text_of(const Tokenizer& tokenizer, const std::vector<std::int32_t>& ids) {
  std::vector<std::int32_t> known;
  std::copy_if(ids.begin(), ids.end(), std::back_inserter(known),
               [&](std::int32_t id) { return id < tokenizer.vocab_size(); });
  return tokenizer.decode(known);
}

Json as_json(const InspectedSource& source) {
  Json json{{"prefix", source.prefix},
            {"tokens", source.tokens},
            {"documents", or_null(source.documents)}};
  if (source.packing) {
    json["packing"] = {{"samples", source.packing->samples},
                       {"cut_documents", source.packing->cut_documents},
                       {"fill", source.packing->fill}};
  }
  return json;
}

Json as_json(const InspectedStretch& stretch, const Tokenizer& tokenizer) {
  Json json{{"document", or_null(stretch.document)}};
  if (stretch.fills_up) {
    json["fills_up"] = true;
  } else {
    json["first_token"] = stretch.first;
    json["ends"] = stretch.ends_document;
  }
  json["ids"] = stretch.ids;
  json["positions"] = stretch.positions;
  json["loss_mask"] = stretch.predicts;
  json["text"] = text_of(tokenizer, stretch.ids);
  return json;
}

}  // namespace

std::string inspected_json(const InspectedRun& run) {
  const DataConfig& data = run.rules.data;
  Json json{{"tokenizer", run.tokenizer.name},
            {"sequence_length", data.sequence_length},
            {"document_attention", data.document_attention},
            {"mask_document_ends", data.mask_document_ends},
            {"sources", Json::array()},
            {"samples", Json::array()}};
  for (const InspectedSource& source : run.sources) {
    json["sources"].push_back(as_json(source));
  }
  for (const InspectedSample& sample : run.samples) {
    Json parts = Json::array();
    for (const InspectedStretch& stretch : sample.stretches) {
      parts.push_back(as_json(stretch, *run.tokenizer.tokenizer));
    }
    json["samples"].push_back(
        {{"source", sample.source}, {"begin", sample.begin}, {"documents", parts}});
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace dstrain
