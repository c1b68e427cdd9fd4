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
    r"(?:class|struct|enum class|enum|using) (?P<type>\w+)(?!::)\b"
    r"|(?:(?:constexpr|const|inline|static|thread_local|extern|volatile|std|fmt|nlohmann|auto|void|bool|unsigned)\b|[A-Za-z_])"
    r"[\w:<>,*&\s\[\]().]*?[\s*&>](?P<value>\w+)(?=\(|\{|\[| = |;))")
# What may stand in several files, if it says the same in all of them.
ALIAS = re.compile(r"^(?:using |namespace )(?P<name>\w+) = .*|^using (?P<scope>[\w:]+)::(?P<import>\w+);|^using namespace (?P<all>[\w:]+);")
NOT_CODE = re.compile(r'//[^\n]*|^\s*#include[^\n]*|"(?:\\.|[^"\\\n])*"|R"(\w*)\(.*?\)\1"', re.M | re.S)
# A name behind a dot, an arrow or a scope is somebody else's.
WORD = re.compile(r"(?<![\w.:>])\w+|(?<=[^-]>)\w+|(?<=[^:]:)\w+")


class Source:
    def __init__(self, text):
        self.own, self.aliases, inside = set(), {}, False
        for line in text.splitlines():
            alias = ALIAS.match(line)
            if alias:
                self.aliases[alias["name"] or alias["import"] or alias["all"]] = line
            elif line.startswith("namespace {"):
                inside = True
            elif inside and line.startswith("}  // namespace"):
                inside = False
            elif inside:
                found = OWN.match(line)
                if found:
                    self.own.add(found["type"] or found["value"])
            else:
                self.own |= set(re.findall(r"^#define (\w+)", line))
        self.words = set(WORD.findall(NOT_CODE.sub("", text)))

    def clashes_with(self, other):
        if self.own & other.words or other.own & self.words:
            return True
        return any(name in with_.words and with_.aliases.get(name) != alias
                   for of, with_ in ((self, other), (other, self))
                   for name, alias in of.aliases.items())


def main(size, folder, files):
    groups = []
    chosen = []
    for file in files:
        source = Source((pathlib.Path(folder) / file).read_text())
        place = next((i for i, group in enumerate(groups)
                      if len(group) < size and not any(map(source.clashes_with, group))), None)
        if place is None:
            place = len(groups)
            groups.append([])
        groups[place].append(source)
        chosen.append(str(place))
    print(";".join(chosen))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
