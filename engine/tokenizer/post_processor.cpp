#include "engine/tokenizer/post_processor.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "engine/tokenizer/vocabulary.h"

namespace dstrain {
namespace {

std::int32_t id_of(const JsonPart& part) {
  return static_cast<std::int32_t>(part.number(kMostTokenIds - 1));
}

AroundText around_template(const JsonPart& part) {
  AroundText around;
  bool text_came = false;
  for (const JsonPart& item : part["single"].items()) {
    if (item.find("Sequence")) {
      if (text_came) {
        item.fail("the text comes a second time");
      }
      text_came = true;
      continue;
    }
    const JsonPart name = item["SpecialToken"]["id"];
    for (const JsonPart& id : part["special_tokens"][name.text()]["ids"].items()) {
      (text_came ? around.behind : around.before).push_back(id_of(id));
    }
  }
  if (!text_came) {
    part["single"].fail("the text itself, {\"Sequence\": …}, is missing");
  }
  return around;
}

/// The id of a pair such as ["</s>", 2].
std::int32_t id_of_pair(const JsonPart& part) {
  const std::vector<JsonPart> items = part.items();
  if (items.size() != 2) {
    part.fail("expected a token and its id");
  }
  return id_of(items[1]);
}

AroundText around_sequence(const JsonPart& processors) {
  AroundText all;
  for (const JsonPart& item : processors.items()) {
    AroundText around = around_text(item);
    all.before.insert(all.before.begin(), around.before.begin(), around.before.end());
    all.behind.insert(all.behind.end(), around.behind.begin(), around.behind.end());
  }
  return all;
}

}  // namespace

AroundText around_text(const std::optional<JsonPart>& post_processor) {
  if (!post_processor) {
    return {};
  }
  const JsonPart& part = *post_processor;
  const std::string& type = part["type"].text();
  if (type == "ByteLevel") return {};  // it concerns where tokens lie in the text alone
  if (type == "TemplateProcessing") return around_template(part);
  if (type == "Sequence") return around_sequence(part["processors"]);
  if (type == "RobertaProcessing" || type == "BertProcessing") {
    return {.before = {id_of_pair(part["cls"])}, .behind = {id_of_pair(part["sep"])}};
  }
  part["type"].fail(
      fmt::format("post-processor \"{}\" is not supported; those supported are TemplateProcessing, "
                  "ByteLevel, RobertaProcessing, BertProcessing and Sequence",
                  type));
}

}  // namespace dstrain
