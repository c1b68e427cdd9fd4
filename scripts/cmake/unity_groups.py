#!/usr/bin/env python3
"""Shares the sources of one library out over translation units, for builds that compile several
files together (DSTRAIN_UNITY). Files that use the same name for different things of their own, in
an anonymous namespace or an alias, go into different ones.

  unity_groups.py SIZE FOLDER FILE…    prints a CMake list of the files' groups, in order
"""
import pathlib, re, sys

# At the start of a line, inside an anonymous namespace: what a file calls its own.
OWN = re.compile(
    r"^(?:template <.*> ?)?(?:\[\[\w+\]\] )?(?:"
    r"(?:class|struct|enum class|enum|using) (?P<type>\w+)"
    r"|(?:(?:constexpr|const|inline|static|thread_local|extern|volatile|std|fmt|nlohmann|auto|void|bool|unsigned)\b|[A-Za-z_])"
    r"[\w:<>,*&\s\[\]().]*?[\s*&>](?P<value>\w+)(?=\(|\{|\[| = |;))")
ALIAS = re.compile(r"^(?:using (\w+) =|namespace (\w+) =|using namespace ([\w:]+))")


def own_names(text):
    names, inside = set(), False
    for line in text.splitlines():
        alias = ALIAS.match(line)
        if alias:
            names.add(next(filter(None, alias.groups())))
        if line.startswith("namespace {"):
            inside = True
        elif inside and line.startswith("}  // namespace"):
            inside = False
        elif inside:
            found = OWN.match(line)
            if found:
                names.add(found["type"] or found["value"])
        else:
            names |= set(re.findall(r"^#define (\w+)", line))
    return names


def main(size, folder, files):
    groups = []  # [names, number of files]
    chosen = []
    for file in files:
        text = (pathlib.Path(folder) / file).read_text()
        names = own_names(text)
        words = set(re.findall(r"\w+", text))
        # A file must neither define a group's name anew nor use it for something of everybody's.
        place = next((i for i, (taken, used, count) in enumerate(groups)
                      if count < size and not names & used and not taken & words), None)
        if place is None:
            place = len(groups)
            groups.append([set(), set(), 0])
        group = groups[place]
        group[0] |= names
        group[1] |= words
        group[2] += 1
        chosen.append(str(place))
    print(";".join(chosen))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
