#include "engine/config/family_keys.h"

#include <algorithm>

#include "kernels/math/activation.h"

namespace dstrain {
namespace {

bool holds(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

void add_once(std::vector<std::string>& names, const std::string& name) {
  if (!holds(names, name)) names.push_back(name);
}

struct ActivationWord {
  std::string word;
  ActivationKind kind;
};
template <typename... Formulas>
std::vector<ActivationWord> activation_words(ActivationList<Formulas...> /*all*/) {
  std::vector<ActivationWord> words;
  const auto add = [&]<typename Formula>(Formula /*formula*/) {
    for (const char* word : Formula::kWords)
      words.push_back({word, Formula::kKind});
  };
  (add(Formulas{}), ...);
  return words;
}

/// The family's word for the model's activation, or its first word.
std::string word_for_activation(const ModelSpec& model) {
  const std::string own = family_of(model).activation_word;
  std::string first;
  for (const auto& [word, kind] : activation_words(Activations{})) {
    if (kind != model.activation) continue;
    if (word == own) return own;
    if (first.empty()) first = word;
  }
  return first;
}

}  // namespace

std::string names_of(const FamilyTest& has, const std::string& ending) {
  std::vector<std::string> names;
  for (const Family& family : families()) {
    if (has(family)) names.push_back(family.model_type() + ending);
  }
  std::string list;
  for (std::size_t i = 0; i < names.size(); ++i) {
    list += (i == 0 ? "" : i + 1 == names.size() ? " and " : ", ") + names[i];
  }
  return list;
}

Key for_families(Key key, FamilyTest has) {
  const std::string names = names_of(has);
  return only_for(std::move(key), names,
                  [has = std::move(has)](const Config& c) { return has(family_of(c.model)); });
}

std::vector<Key> spelled(const std::string& name, const FamilyTest& has, const MakeKey& make) {
  // A key of families that call it alike, and by the same second name.
  const auto names_in = [name](const Family& family) {
    const auto second = family.second_spellings.find(name);
    std::vector<std::string> names = {family.key(name)};
    if (second != family.second_spellings.end()) names.push_back(second->second);
    return names;
  };
  std::vector<std::vector<std::string>> spellings;
  for (const Family& family : families()) {
    const std::vector<std::string> names = names_in(family);
    const bool is_new = std::find(spellings.begin(), spellings.end(), names) == spellings.end();
    if (has(family) && !names.front().empty() && is_new) spellings.push_back(names);
  }
  std::vector<Key> keys;
  for (const std::vector<std::string>& names : spellings) {
    Key key = make(names.front());
    if (names.size() > 1) key.aliases.push_back("model." + names.back());
    keys.push_back(for_families(std::move(key), [has, names_in, names](const Family& family) {
      return has(family) && names_in(family) == names;
    }));
  }
  return keys;
}

std::vector<Key> listed_keys(
    const std::function<const std::vector<std::string>&(const Family&)>& names,
    const MakeKey& make) {
  std::vector<std::string> all;
  for (const Family& family : families()) {
    for (const std::string& name : names(family))
      add_once(all, name);
  }
  std::vector<Key> keys;
  for (const std::string& name : all) {
    keys.push_back(for_families(
        make(name), [names, name](const Family& family) { return holds(names(family), name); }));
  }
  return keys;
}

Key activation_key(const std::string& path) {
  Key key{.path = path, .kind = KeyKind::kString};
  for (const ActivationWord& known : activation_words(Activations{}))
    key.choices.push_back(known.word);
  key.set = [](ConfigDraft& draft, const JsonNode& node) {
    for (const auto& [word, kind] : activation_words(Activations{}))
      if (word == node.text) draft.config.model.activation = kind;
  };
  key.get = [](const Config& c) { return json_quote(word_for_activation(c.model)); };
  return null_is_default(key);
}

}  // namespace dstrain
