#!/usr/bin/env python3
"""Shares the sources of one library or program out over translation units, for builds that compile
several files together (DSTRAIN_UNITY). Files that use the same name for different things of their
own, in an anonymous namespace or an alias, go into different ones.

  unity_groups.py SIZE FOLDER FILE…            prints a CMake list of the files' groups, in order
  unity_groups.py --write OUT SIZE FOLDER FILE…  writes the units into OUT and prints their paths

Written units hold more: of names that several files call their own, each file's are defined as
others, "kSteps" as "kSteps_in_resume_test". The headers of all files come first, so that none of
them sees such a name.
"""
import pathlib, re, sys

# At the start of a line, inside an anonymous namespace: what a file calls its own.
OWN = re.compile(
    r"^(?!using enum )(?:template <.*> ?)?(?:\[\[\w+\]\] )?(?:"
    r"(?:class|struct|enum class|enum|using(?! namespace)) (?P<type>\w+)(?!::)\b"
    r"|(?:(?:constexpr|const|inline|static|thread_local|extern|volatile|std|fmt|nlohmann|auto|void|bool|unsigned)\b|[A-Za-z_])"
    r"[\w:<>,*&\s\[\]().]*?[\s*&>](?P<value>[A-Za-z_]\w*)(?=\(|\{|\[| = |;))")
# What may stand in several files, if it says the same in all of them.
ALIAS = re.compile(r"^(?:using |namespace )(?P<name>\w+) = .*|^using (?P<scope>[\w:]+)::(?P<import>\w+);")
INCLUDE = re.compile(r'^#include (?:<.*|".*\.(?!inc").*)', re.M)
NOT_CODE = re.compile(r'//[^\n]*|^\s*#include[^\n]*|"(?:\\.|[^"\\\n])*"|R"(\w*)\(.*?\)\1"', re.M | re.S)
# A name behind a dot, an arrow or a scope is somebody else's.
WORD = re.compile(r"(?<![\w.:>])\w+|(?<=[^-]>)\w+|(?<=[^:]:)\w+")
FOREIGN = re.compile(r"(?:\.|->|::)\s*(\w+)")
CALL = re.compile(r"(?<![\w.:>])(\w+)(?=[(<])")


class Source:
    def __init__(self, path):
        self.path = path
        text = path.read_text()
        self.own, self.functions, self.aliases, inside = set(), set(), {}, False
        for line in text.splitlines():
            alias = ALIAS.match(line)
            if alias:
                self.aliases[alias["name"] or alias["import"]] = line
            elif line.startswith("namespace {"):
                inside = True
            elif inside and line.startswith("}  // namespace"):
                inside = False
            elif inside:
                found = OWN.match(line)
                if found:
                    name = found["type"] or found["value"]
                    self.own.add(name)
                    if line[found.end():].startswith("("):
                        self.functions.add(name)
            else:
                self.own |= set(re.findall(r"^#define (\w+)", line))
        self.includes = [] if re.search(r"^#if", text, re.M) else INCLUDE.findall(text)
        code = NOT_CODE.sub("", text)
        self.words = set(WORD.findall(code))
        self.calls = set(CALL.findall(code))
        self.foreign = set(FOREIGN.findall(code))

    def hidden_from(self, other):
        """What this file calls its own and the other means otherwise. A variable may be called like
        another file's function, as long as nothing is called by that name."""
        return (self.own & other.own | (self.own - self.functions) & other.words |
                self.functions & other.calls)

    def clashes_with(self, other, may_rename):
        for of, with_ in ((self, other), (other, self)):
            hidden = of.hidden_from(with_)
            if hidden and not (may_rename and of.includes and hidden.isdisjoint(of.foreign)):
                return True
            if any(name in with_.own or with_.aliases.get(name, alias) != alias
                   for name, alias in of.aliases.items()):
                return True
        return False


def groups_of(sources, size, may_rename):
    clashes = {source: {other for other in sources
                        if other is not source and source.clashes_with(other, may_rename)}
               for source in sources}
    groups = []
    # Those that go with the fewest others choose first.
    for source in sorted(sources, key=lambda source: -len(clashes[source])):
        group = next((group for group in groups
                      if len(group) < size and not clashes[source].intersection(group)), None)
        if group is None:
            groups.append(group := [])
        group.append(source)
    return groups


def unit(group):
    lines = list(dict.fromkeys(line for source in group for line in source.includes))
    for source in group:
        hidden = sorted(set().union(*(source.hidden_from(other) for other in group if other is not source)))
        lines += [f"#define {name} {name}_in_{source.path.stem}" for name in hidden]
        lines += [f'#include "{source.path}"']
        lines += [f"#undef {name}" for name in hidden]
    return "\n".join(lines) + "\n"


def main(arguments):
    out = pathlib.Path(arguments[1]) if arguments[0] == "--write" else None
    size, folder, *files = arguments[2:] if out else arguments
    sources = [Source((pathlib.Path(folder) / file).resolve()) for file in files]
    groups = groups_of(sources, int(size), may_rename=bool(out))
    if not out:
        numbers = {source: number for number, group in enumerate(groups) for source in group}
        print(";".join(str(numbers[source]) for source in sources))
        return
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / f"unit-{number}.cpp" for number in range(len(groups))]
    for path, group in zip(paths, groups):
        text = unit(group)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    print(";".join(map(str, paths)))


if __name__ == "__main__":
    main(sys.argv[1:])
