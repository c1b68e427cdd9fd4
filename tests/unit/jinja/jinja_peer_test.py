#!/usr/bin/env python3
"""Compares our templates with Python's Jinja, set up as transformers sets it up: the same text for each of
these templates, and an error where Jinja has one."""
import json, subprocess, sys

try:
    import jinja2, jinja2.ext, jinja2.sandbox
except ImportError:
    print("skipped: no python3-jinja2")
    sys.exit(77)


class Generation(jinja2.ext.Extension):
    """{% generation %}: no more than what it encloses; its place is another test's."""
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_enclosed"), [], [], body).set_lineno(line)

    def _enclosed(self, caller):
        return caller()


def environment():
    made = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)
    made.globals["raise_exception"] = raise_exception
    made.filters["tojson"] = lambda x, ensure_ascii=False, indent=None, separators=None, sort_keys=False: json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    return made


NAMES = {
    "messages": [
        {"role": "system", "content": "  Be brief.\n"},
        {"role": "user", "content": "Grüße — 你好 \u00a0"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello 'you' \"there\"\\", "tool_calls": [
            {"type": "function", "function": {"name": "f", "arguments": {"a": 1, "b": [1.5, None, True], "ü": "é\n"}}}]},
        {"role": "tool", "content": "\t42 "},
        {"role": "assistant", "content": ""},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {
        "type": "object", "properties": {"x": {"type": ["string", "null"]}, "a": {"enum": [1, 2.0, 1e20, 1e-7]}}, "required": ["x"]}}}],
    "numbers": [3, 1, 2, 10, -4], "floats": [0.1, 1.0, 1e16, 1.5e-5, 123456789.125, -0.0, 1e22, 100.0],
    "words": ["b", "A", "a", "B", "ä", "zz"], "text": "The quick brown fox", "none": None, "yes": True, "no": False,
    "empty": [], "nothing": "", "map": {"z": 1, "a": {"b": [1, {"c": "deep"}]}, "items": 5, "k": None}, "bos_token": "<s>",
    "space": " \t\u3000x y\u00a0\n\x1d", "five": 5, "ss": "straße", "lines": "a\n\nb\r\nc", "add_generation_prompt": True,
}

# One template a line; those of several lines are below.
EXPRESSIONS = r"""
1 + 2 * 3 - 4 / 2 // 1 % 3
2 ** 3 ** 2
-2 ** 2
7 // -2, -7 // 2, 7 % -3, -7 % 3, 7.5 // 2, -7.5 % 2
1 / 4, 4 / 2, 10 // 3
floats
floats | join(' ')
floats[0] + floats[0] + floats[0]
1e3, 1_000, 1.5e-3, 0.5
'a' 'b' "c"
'a\n\t\\\'\"\x41\u00e9\U0001F600\101\q'
'a' ~ 1 ~ none ~ yes ~ [1, 'x']
'ab' * 3, 3 * [1]
[1, 2] + [3], (1,) + (2,)
'x' in 'xyz', 'q' not in 'xyz', 1 in [1, 2], 'z' in map, 'y' in map
1 < 2 < 3, 1 < 3 < 2, 3 > 2 >= 2
1 == 1.0, 1 == true, 'a' == "a", [1] == (1,), none == undefined_one
'a' < 'b', 'Z' < 'a', [1, 2] < [1, 3]
not yes, not no and yes, yes or no and no
yes and 'second', no or 'other', '' or none
'a' if yes else 'b'
'a' if no
('a' if no) is defined
1 if no else 2 if no else 3
messages[0].role, messages[0]['role'], messages[-1].content, messages[0].missing is defined
messages[99] is defined, messages['x'] is defined
text[0], text[-1], text[1:5], text[::-1], text[::2], text[-3:], text[:-3], text[100:], text[5:1:-1]
words[1:], words[::-1], words[-2:], words[::2], words[10:], words[4:0:-2]
'你好吗'[1], '你好吗'[1:], '你好吗' | length, '你好吗'[::-1]
map['items'], map.z, map.a.b[1].c, map['a']['b'][0], map.k
map.items() | list
map.keys() | list, map.values() | list
map.get('z'), map.get('q'), map.get('q', 7)
{'a': 1, 'b': [1, 2], 3: none}
{'a': 1, 'a': 2}
{}
()
(1,)
[1, 'two', "it's", 'say "x"', none, true, 1.0]
'both \' and "'
none, yes, no, empty, nothing
undefined_one
undefined_one is defined, undefined_one is undefined, none is none, none is defined
undefined_one | default('d'), none | default('d'), none | default('d', true), '' | d('e', boolean=true)
undefined_one | length, undefined_one | list
5 is odd, 4 is even, 9 is divisibleby 3, 5 is divisibleby(2)
'a' is string, 1 is number, true is number, 1 is integer, true is integer, 1.0 is float, true is boolean
map is mapping, words is iterable, words is sequence, map is sequence, 'x' is iterable, 5 is iterable, none is iterable
'a' is in 'abc', 1 is in [1], 3 is not in [1]
1 is eq 1, 1 is equalto(2), 2 is gt 1, 2 is ge 2, 1 is lt 2, 1 is le 0, 1 is ne 2, 1 is sameas 1, none is sameas none
yes is true, yes is false, 1 is true
'abc' is lower, 'ABC' is upper, 'aBc' is lower, '1' is upper
range is callable, 'x' is callable
not 1 is odd, 1 is not odd
'upper' is filter, 'nofilter' is filter, 'odd' is test
space | trim, space.strip(), space.lstrip(), space.rstrip()
'xxhixx'.strip('x'), 'xyhiyx'.lstrip('xy'), 'hi\n\n'.rstrip('\n'), '你好你'.strip('你')
text.split(), text.split(' '), text.split('q', 1), text.split(' ', 2), '  a  b '.split(), '  a  b '.split(' '), '  a b  c '.split(none, 1)
text.rsplit(' ', 1), ' a b '.rsplit(), ' a b c '.rsplit(none, 1), 'a,b,c'.rsplit(',', 1)
text.upper(), text.lower(), text.title(), text.capitalize(), ss.upper(), 'it\'s'.title(), 'x1y a'.title()
text.startswith('The'), text.endswith('fox'), text.startswith(('a', 'T')), text.find('quick'), text.rfind('o'), text.find('zzz'), '你好x'.find('x')
text.replace('o', '0'), text.replace('o', '0', 1), 'ab'.replace('', '-'), text | replace('quick', 'slow')
', '.join(words), 'aXbX'.count('X'), 'a.b'.split('.')[-1], lines.splitlines(), lines.splitlines(true)
'42'.isdigit(), 'a'.isalpha(), 'a1'.isalnum(), ' '.isspace(), ''.isdigit(), 'ä'.isalpha()
'{} and {}'.format(1, 'x'), '{1}{0}'.format('a', 'b'), '{n}!'.format(n=3), '{{}}'.format()
'%s is %d and %.2f' % ('x', 3, 2.5), '%05d|%-5s|%5s|%x' % (42, 'a', 'b', 255), '%s' % 'one', '100%%' % ()
'%s-%s' | format('a', 'b')
'prefix-x'.removeprefix('prefix-'), 'x.py'.removesuffix('.py')
words | sort, words | sort(reverse=true), words | sort(case_sensitive=true), numbers | sort, numbers | sort(true)
messages | sort(attribute='role') | map(attribute='role') | list
words | unique | list, words | reverse | list, text | reverse, words | first, words | last, text | first
numbers | sum, numbers | min, numbers | max, words | max, numbers | sum(start=100), empty | min is defined
messages | selectattr('role', 'equalto', 'user') | list | length, messages | rejectattr('tool_calls') | map(attribute='role') | join(',')
messages | selectattr('role', 'in', ['user', 'tool']) | map(attribute='role') | list
messages | selectattr('tool_calls', 'defined') | list | length
numbers | select('odd') | list, numbers | reject('gt', 2) | list, [0, 1, '', 'x'] | select | list
words | map('upper') | list, messages | map(attribute='content') | map('length') | list, [{'a': {'b': 3}}] | map(attribute='a.b') | list, [[1, 2]] | map(attribute=1) | list, [{}] | map(attribute='q', default='-') | list
text | length, words | count, map | length, text | wordcount, text | upper | lower | title
map | dictsort | list, map | dictsort(by='key', reverse=true) | map('first') | list
map | items | list
lines | indent, lines | indent(2, true), lines | indent(1, blank=true), 'a\nb' | indent('> ')
numbers | batch(2) | list, numbers | batch(2, 'x') | list
messages | groupby('role') | map('first') | list
3.7 | int, '42' | int, '42.9' | int, 'x' | int, 'x' | int(7), none | int, ' 12 ' | int, '3.5' | float, 'q' | float, 3 | float
-3 | abs, 2.5 | round, 3.5 | round, 2.45 | round(1), 2.1 | round(0, 'ceil'), 2.9 | round(method='floor'), -1.5 | abs
5 | string + 'x', [1] | string, none | string, 'a' | list, map | list
text | truncate(10), text | truncate(10, true), text | truncate(9, false, '!'), text | truncate(100), text | truncate(12, leeway=0)
('<a href="x">&\'' | escape) ~ ('<b>' | e) ~ ('<b>' | safe)
tools | tojson
tools | tojson(indent=2)
map | tojson(indent=4, sort_keys=true), map | tojson(separators=(',', ':')), 'é"\\/\u2028' | tojson, 'é😀' | tojson(ensure_ascii=true), 1.0 | tojson, {'a': []} | tojson(indent=2), {} | tojson(indent=1), [1, [2, {}]] | tojson(indent=1)
messages[2] | tojson, {1: 2, none: 3, true: 4} | tojson, floats | tojson, '\x00\x1f\x7f' | tojson
range(5) | list, range(1, 4) | list, range(10, 0, -3) | list, range(0) | list
dict(a=1, b=2), dict([('x', 1)]), dict({'q': 1}, z=2)
words | join, words | join(', '), messages | join('|', attribute='role'), [1, none, 'x'] | join('-')
words.index('A'), words.count('a'), (1, 2, 1).count(1)
(1, 2)[0], [[1, 2], [3]][0][1], messages[1]['content'][0:3]
'a' | upper ~ 'b' | upper
-1 | abs, - numbers[0], +3
[1, 2, 3,], {'a': 1,}, (1, 2,)
1 if 1 is odd else 2
words | attr('count') is callable
'\
x'
'a' == 'a' and 'b' != 'c' or raise_exception('no')
"{{ }}", '%}', '#}'
{'a': {'b': 1}}.a.b
1.0 * 3, 3 * 1.5, 2 ** -1, 2.0 ** 3, 7 // 2.0, 1e15, 1e16, 1e-4, 1e-5, 123456.789e3
"x".join(["a"]) + 'y' if true
messages[0].content.strip().split(' ')[0].upper()
true, false, True, False, None, none
loop is defined, caller is defined
'a' 'b' | upper
words[-1:][0], words[:2] | last
"é" == "é", "é" | length
'tab\there' | replace('\t', ' ')
namespace(a=1).a, namespace({'b': 2}, c=3).b
""".strip().split("\n")

TEMPLATES = [
    "plain", "a\n", "a\n\n", "\n", "", "{{ 'x' }}\n", "{{ 'x' }}\n\n", "a\r\nb\rc\r\n",
    "  {% if yes %}\n  a\n  {% endif %}\nb", "x  {% if yes %}  a{% endif %}  \n b", "{%- if yes -%}  a  {%- endif -%}  b",
    "a  {%- if yes %}\n b{% endif -%}\n\n c", "a  {%+ if yes %} b{% endif +%}\n c", "  {{- 'x' -}}  y", "  {{ 'x' }}  \ny",
    "a {# comment #} b", "  {# comment #}\nb", "a\n  {#- c -#}\n  b", "  {#+ c +#}\n b", "{# {{ x }} {% if %} #}z",
    "{% raw %}{{ not }} {% run %}{% endraw %} {{ five }}", "{%- raw -%}  a {{ x }}  {%- endraw -%}  b", "  {% raw %}\n x\n  {% endraw %}\ny",
    "{% for m in messages %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }} {{ m.role }}\n{% endfor %}",
    "{% for x in numbers if x > 1 %}{{ loop.index }}:{{ x }}/{{ loop.length }} {% else %}none{% endfor %}",
    "{% for x in empty %}a{% else %}none{% endfor %}", "{% for x in undefined_one %}a{% else %}none{% endfor %}",
    "{% for k, v in map.items() %}{{ k }}={{ v }};{% endfor %}", "{% for k in map %}{{ k }}{% endfor %}", "{% for c in 'héy' %}[{{ c }}]{% endfor %}",
    "{% for (a, b), c in [((1, 2), 3)] %}{{ a }}{{ b }}{{ c }}{% endfor %}", "{% for a, b in [[1, 2], [3, 4]] %}{{ a + b }} {% endfor %}",
    "{% for x in numbers %}{% if x == 2 %}{% break %}{% endif %}{% if x == 1 %}{% continue %}{% endif %}{{ x }} {% endfor %}done",
    "{% for x in numbers %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {{ loop.cycle('o', 'e') }} {{ loop.changed(x > 1) }} {% endfor %}",
    "{% for x in [1, 2] %}{% for y in [3, 4] %}{{ loop.index }}{{ x }}{{ y }} {% endfor %}{{ loop.index }}{% endfor %}",
    "{% for x in [[1, [2, 3]], 4] recursive %}{{ loop.depth }}{% if x is iterable %}({{ loop(x) }}){% else %}{{ x }}{% endif %}{% endfor %}",
    "{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = i + 5 %}{{ x }}{% endfor %}{{ x }}",
    "{% set ns = namespace(found=false, n=0) %}{% for i in numbers %}{% if i == 2 %}{% set ns.found = true %}{% endif %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.found }}{{ ns.n }}",
    "{% if yes %}{% set y = 5 %}{% endif %}{{ y }}", "{% set a, b = 1, [2] %}{{ a }}{{ b }}", "{% set a = 1, 2 %}{{ a }}", "{% set (a, b) = (3, 4) %}{{ a }}{{ b }}",
    "{% set x %}hello {{ five }}\n{% endset %}[{{ x }}]", "{% set x | upper | trim %} hello {% endset %}[{{ x }}]",
    "{% if no %}a{% elif five == 5 %}b{% else %}c{% endif %}", "{% if no %}a{% elif no %}b{% else %}c{% endif %}", "{% if not no and (yes or no) %}t{% endif %}",
    "{% macro f(a, b=2, c=a) %}{{ a }}-{{ b }}-{{ c }}{% endmacro %}{{ f(1) }} {{ f(1, 3) }} {{ f(b=5, a=4) }} {{ f() }}",
    "{% macro f(x) %}{% if x > 0 %}{{ x }},{{ f(x - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
    "{% macro f() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1, 2, z=3) }}{{ f.name }}", "{% macro f() %}\n  x\n{% endmacro %}[{{ f() | trim }}]",
    "{% macro wrap(t) %}<{{ t }}>{{ caller() }}</{{ t }}>{% endmacro %}{% call wrap('b') %}in {{ five }}{% endcall %}",
    "{% macro each(l) %}{% for x in l %}{{ caller(x) }}{% endfor %}{% endmacro %}{% call(v) each([1, 2]) %}({{ v }}){% endcall %}",
    "{% set g = 7 %}{% macro f() %}{{ g }}{{ five }}{% endmacro %}{{ f() }}", "{% macro f() %}{% set q = 1 %}{% endmacro %}{{ f() }}{{ q is defined }}",
    "{% filter upper %}abc {{ text }}{% endfilter %}", "{% filter replace('a', 'b') | upper %}aha{% endfilter %}",
    "{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}", "{% with %}{% set a = 1 %}{{ a }}{% endwith %}{{ a is defined }}",
    "{% generation %}a{{ five }}{% endgeneration %}b", "{%- generation %}\n  a{% set w = 1 %}{{ w }}\n{%- endgeneration %}{{ w is defined }}",
    "{% set j = joiner(', ') %}{% for x in [1, 2, 3] %}{{ j() }}{{ x }}{% endfor %}", "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}",
    "{{ {'a': {'b': {'c': 1}}} }}", "{{ {'a': 1}['a'] }}{{ '}}' }}", "{{ '{%' }}{{ \"%}\" }}", "{{5}}{{-5}}{{+5}}",
    "{% for message in messages %}{{ '<|' + message['role'] + '|>\n' + message['content'] | trim + '<|end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}",
    "{%- for m in messages[::-1] %}\n    {%- set index = (messages|length - 1) - loop.index0 %}\n    {{- index }}{{ m.role }}\n{%- endfor %}",
    "{%- for m in messages %}\n    {%- if '</think>' in m.content %}\n        {{- m.content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') }}\n    {%- endif %}\n{%- endfor %}",
    "{% for t in messages[2].tool_calls %}{% set t = t.function %}{{ t.name }}{{ t.arguments | tojson }}{% endfor %}{{ t is defined }}",
    "{{ bos_token }}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}odd{% endif %}{% endfor %}",
    "{%- set props = tools[0].function.parameters.properties %}{%- for name, spec in props | dictsort %}{{ name }}:{{ spec.type | default('any') }};{%- endfor %}",
    # Errors
    "{{ undefined_one.x }}", "{{ 1 + 'a' }}", "{{ undefined_one + 1 }}", "{{ none + 'a' }}", "{{ 'a' < 1 }}", "{{ 1 / 0 }}", "{{ messages[0]() }}", "{{ undefined_one() }}",
    "{% for a, b in [1] %}{% endfor %}", "{% for a, b in [[1]] %}{% endfor %}", "{% for x in 5 %}{% endfor %}", "{{ raise_exception('stop') }}", "{{ 'x' | nofilter }}", "{{ 1 is notest }}",
    "{% if %}x{% endif %}", "{% if yes %}x", "{{ 'x }}", "{{ x", "{% endfor %}", "{% unknown %}", "{{ }}", "{{ 1 2 }}", "{% set x = %}", "{{ (1 }}", "{{ 1) }}", "{# open", "{% raw %}x",
    "{% for x in y", "{{ a. }}", "{{ a[ }}", "{{ {'a' 1} }}", "{{ f(a=1, 2) }}", "{% include 'x' %}", "{% extends 'x' %}", "{{ range(10000000) | list }}", "{{ undefined_one | tojson }}",
    "{% set messages.x = 1 %}", "{{ words.append(1) }}", "{{ 'a'.nomethod() }}", "{% break %}", "{{ text.split('') }}", "{{ namespace().a.b }}", "{{ 5 | length }}", "{{ none | items | list }}",
]


def main(program):
    cases = ["{{ " + line + " }}" for line in EXPRESSIONS] + TEMPLATES
    cases = [case.replace("\\\nx", "\\\nx") for case in cases]
    requests = "".join(json.dumps({"source": case, "names": NAMES}) + "\n" for case in cases)
    done = subprocess.run([program], input=requests, capture_output=True, text=True, check=True)
    answers = [json.loads(line) for line in done.stdout.split("\n") if line]
    assert len(answers) == len(cases), (len(answers), len(cases), done.stderr)
    wrong = 0
    for case, answer in zip(cases, answers):
        try:
            expected = environment().from_string(case).render(**NAMES)
        except Exception as error:  # whatever Python raises for it
            expected, reason = None, f"{type(error).__name__}: {error}"
        if expected is None and "error" not in answer:
            print(f"{case!r}\n  ours    {answer['text']!r}\n  Jinja's {reason}")
            wrong += 1
        elif expected is not None and answer.get("text") != expected:
            print(f"{case!r}\n  ours    {answer.get('text', answer.get('error'))!r}\n  Jinja's {expected!r}")
            wrong += 1
    print(f"{len(cases)} templates, {wrong} differ from Jinja {jinja2.__version__}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
