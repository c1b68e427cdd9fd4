#include "cmd/report/report_style.h"

namespace dstrain {

std::string_view report_style() {
  return R"(:root{color-scheme:light dark;--page:#f5f6f8;--card:#fff;--ink:#1b1e24;--soft:#5b6270;--line:#dfe3e9;--rule:#9aa1ad;--mark:#fff3c4;
--run0:#2563a8;--run1:#c2571a;--run2:#2b8a4b;--run3:#9b3fa3;--run4:#8a6d00;--run5:#0b7f86;--run6:#c23b5e;--run7:#5b5f66;
--forward:#7fa7d6;--backward:#3d6ea8;--update:#1d3557;--data:#e0a53c;--rest:#b9bfca;--eval:#6fb28a;--save:#b06fb8}
@media (prefers-color-scheme:dark){:root{--page:#101317;--card:#181c22;--ink:#e9ecf0;--soft:#a3abb8;--line:#2b313a;--rule:#6a7280;--mark:#4a3f14;
--run0:#6aa5e8;--run1:#f0925a;--run2:#69c98a;--run3:#cf86d8;--run4:#d8b445;--run5:#4fc6cd;--run6:#f2839f;--run7:#a9aeb6;
--forward:#5b86bb;--backward:#8fb6e6;--update:#d5e4f7;--data:#e0a53c;--rest:#4d5562;--eval:#6fb28a;--save:#c58acb}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.5 system-ui,'Segoe UI',Roboto,'Noto Sans','DejaVu Sans',sans-serif}
main{max-width:1360px;margin:0 auto;padding:20px 16px 60px}
h1{font-size:24px;margin:4px 0}h2{font-size:18px;margin:32px 0 10px}
p{margin:6px 0}.soft{color:var(--soft);font-weight:400}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:14px}
figure,.card{background:var(--card);border:1px solid var(--line);border-radius:10px;margin:0;padding:12px 12px 8px}
figure{position:relative}
figcaption{font-weight:600;margin:0 0 4px 4px}
svg{display:block;width:100%;height:auto}
svg text{fill:var(--ink);font-family:inherit}svg text.soft{fill:var(--soft)}
.grid{stroke:var(--line)}.rule{stroke:var(--rule)}
.curve{fill:none;stroke:var(--c);stroke-width:1.6;stroke-linejoin:round}.dashed{stroke-dasharray:6 4}.faint{stroke-opacity:.32;stroke-width:1}
.band{fill:var(--c);fill-opacity:.16;stroke:none}.dot{fill:var(--c)}
.run0{--c:var(--run0)}.run1{--c:var(--run1)}.run2{--c:var(--run2)}.run3{--c:var(--run3)}
.run4{--c:var(--run4)}.run5{--c:var(--run5)}.run6{--c:var(--run6)}.run7{--c:var(--run7)}
.key{display:flex;flex-wrap:wrap;gap:6px 18px;margin:12px 0}
.key label{cursor:pointer;white-space:nowrap}.key i,td i,th i{display:inline-block;width:12px;height:12px;border-radius:3px;background:var(--c);margin-right:6px;vertical-align:-1px}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:14px}
th,td{text-align:left;padding:5px 12px 5px 4px;border-bottom:1px solid var(--line);vertical-align:top}
th{font-weight:600}td.number{text-align:right;font-variant-numeric:tabular-nums}
tr.differs td{background:var(--mark)}
td:first-child code,.time{white-space:nowrap}
code{font:13px ui-monospace,'SF Mono',Menlo,Consolas,'DejaVu Sans Mono',monospace;overflow-wrap:anywhere}
.split{display:flex;height:26px;border-radius:5px;overflow:hidden;margin:6px 0}
.split div{min-width:0}
.state{font-weight:600}
.tip{position:absolute;pointer-events:none;background:var(--card);border:1px solid var(--rule);border-radius:6px;padding:4px 8px;font-size:13px;display:none;z-index:2;white-space:nowrap}
.tip i{display:inline-block;width:9px;height:9px;border-radius:2px;background:var(--c);margin-right:5px}
.pointer{display:none;stroke:var(--rule);stroke-dasharray:3 3}
@media (max-width:560px){svg text{font-size:17px}}
summary{cursor:pointer;font-weight:600;margin:8px 0}
@media print{:root{--page:#fff}main{max-width:none;padding:0}.charts{grid-template-columns:1fr 1fr}figure,.card,tr{break-inside:avoid}.card.scroll{break-inside:auto;overflow:visible}h2{break-after:avoid}table{table-layout:fixed;overflow-wrap:anywhere}td:first-child code,.time{white-space:normal}.key input{display:none}body{font-size:12px}details:not([open])>*{display:none}}
)";
}

std::string_view report_script() {
  return R"js(
for (const figure of document.querySelectorAll('figure.chart')) {
  const svg = figure.querySelector('svg'), data = JSON.parse(figure.querySelector('script').textContent);
  const tip = figure.appendChild(document.createElement('div'));
  tip.className = 'tip';
  const line = svg.querySelector('.pointer');
  const nearest = (list, value) => {
    let low = 0, high = list.length - 1;
    while (high - low > 1) { const middle = (low + high) >> 1; if (list[middle] < value) low = middle; else high = middle; }
    return Math.abs(list[low] - value) <= Math.abs(list[high] - value) ? low : high;
  };
  const hide = () => { tip.style.display = line.style.display = ''; };
  svg.addEventListener('pointerleave', hide);
  svg.addEventListener('pointermove', event => {
    const box = svg.getBoundingClientRect(), scale = data.w / box.width;
    const step = data.low + ((event.clientX - box.left) * scale - data.x0) / (data.x1 - data.x0) * (data.high - data.low);
    if (step < data.low || step > data.high) return hide();
    tip.replaceChildren();
    const head = tip.appendChild(document.createElement('div'));
    let at = null;
    for (const series of data.series) {
      if (!series.x.length || document.body.classList.contains('without' + series.run)) continue;
      const last = series.x[series.x.length - 1], near = (data.high - data.low) / 100;
      if (step < series.x[0] - near || step > last + near) continue;  // the run was not there
      const i = nearest(series.x, step);
      if (at === null || Math.abs(series.x[i] - step) < Math.abs(at - step)) at = series.x[i];
      const row = tip.appendChild(document.createElement('div'));
      row.className = 'run' + series.run % 8;
      row.appendChild(document.createElement('i'));
      row.append(series.name + ': ' + Number(series.y[i]).toPrecision(5).replace(/(\.\d*?)0+$/, '$1').replace(/\.$/, ''));
    }
    if (at === null) return hide();
    head.textContent = 'step ' + Math.round(at);
    const x = data.x0 + (at - data.low) / (data.high - data.low) * (data.x1 - data.x0);
    line.setAttribute('x1', x); line.setAttribute('x2', x);
    tip.style.display = 'block'; line.style.display = 'inline';
    const left = x / scale + box.left - figure.getBoundingClientRect().left;
    tip.style.left = Math.min(left + 10, figure.clientWidth - tip.offsetWidth - 4) + 'px';
    tip.style.top = '40px';
  });
}
for (const box of document.querySelectorAll('.key input'))
  box.addEventListener('change', () => document.body.classList.toggle('without' + box.value, !box.checked));
)js";
}

}  // namespace dstrain
