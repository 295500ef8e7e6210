"""The explorer: one web application for attention, as a file, behind `qkv serve`, and embedded in documents.

`save_page(answers, path, model=..., command=...)` writes a self-contained file, `served_page(models)` returns the page
of a server, and `build_payload(answers, model=..., command=...)` returns the JSON value that both show: the file embeds
it, and a server returns it from a POST request to /attention with {model, input, options}, where options are
{ablate: [{layer, head}], mask: [token indices], layer}.

The application is plain ES modules in `app/`, which `bundle.py` joins into one script. It allows single-line imports of
names (`import { a, b } from "./x.js";`) and `export function`, `export const` (one name each) and `export class`;
modules must not import each other in a circle.

A view is an object in its own module in `app/views/`, listed in `app/views/index.js`:

    view = {
      name: "matrix",                        in the address: #view=matrix
      label: "Matrix",                       of its tab
      aliases: [],                           other names in the address
      keys: {sort: rule, ...},               rules of the view's own keys of the address (address.js)
      controls: ["layer", "special", ...],   of app.js's CONTROLS: layer, head, special, scale, curve
      standalone: false,                     true if it needs no attention map
      accepts(payload, state),               whether it can show the example `exampleOf(payload, state)`
      render(container, payload, state),     fill an empty element; return a handle
    }
    handle = {
      update(changed),    after a change of the state; `changed` is the set of its keys. Without it, render is repeated.
      figure(),           a drawing for SVG and PNG: { width, height, items } with items of type rect, path, text, image
      tools,              an element with selections of the view, shown next to the controls
      destroy(),          remove observers
    }                     all optional

`state` (state.js) has view, example, layer, head, heads, row and column (pinned tokens), special, scale, curve and
theme, all kept in the address, and `pointed`, the { row, column } under the pointer. `state.set({...})` changes it; a
view may add keys, whose values are strings, with a rule for each in its `keys`. Helpers: context.js (selected
example, layer, head, plane, color scale; `describe`), weights.js (`planeOf`, `thumbnail`, `paint`), color.js
(`colorScale`, `legend`), chips.js (`tokenChips`), heatmap.js (`heatMap` with pan and zoom, `heatMapFigure`),
timeline.js (`timeline`: heat maps over one time axis), matching.js (`matching`: equal tokens of two texts), heads.js
(`headStrip`), candidates.js (`candidateBar`, `percent`), image.js (`drawImage`, `drawOverlay`), text.js (`visible`,
`spelled`, `quoted`), dom.js (`element`, `listbox`, `select`, `button`). All data is inserted as text, never as markup;
inline event handlers, style attributes in markup, outside requests, eval and images from addresses are blocked by the
page's policy (draw images on a canvas).

The payload, format "qkv-attention", version 1:

    format, version, qkv (version), title, model, command, view (the one shown first; "" for any)
    ramps        {light, dark}: colors of the scale; negative_ramps: those of negative scores
    notes        sentences on precision and completeness
    examples     [example]
    server       {endpoint, docs (its address), models, inputs (to start with, by model)}, of a served page only

    example      model, window_title, source, text, score (null if undefined, or if there are predictions), score_name,
                 predictions, unknown (tokens), notes (sentences), texts (distinct token sequences), special (display
                 text of special tokens), maps, picture ({kind: "patches", "caption" or "explanation", grid, and an
                 image} or null), beams (or null), generation (or null), operators (heads), operator_note (why there
                 are none), document, audio, memory, episode and explanation (or null)
    predictions  [{part (a word, "mask 1", "" for the whole input), candidates [[text, probability]], the first ones}]
    image        height, width, type, values: base64 of a PNG or JPEG file
    episode      images, the support set and then the query, their classes, and the predicted class
    explanation  unit, units, outputs [[text, probability]], methods [{name, scores: a matrix [outputs, units] as in
                 operators, faithfulness: AOPC of comprehensiveness and of sufficiency, or null}]; the units of an
                 example with a picture are the cells of its grid
    document     sentences [{weight, words, weights of the words in the sentence, continues: whether it is a part of a
                 sentence that goes on in the next}]
    audio        start, end, frame and column (seconds of a frame of the spectrogram and of a column of the maps),
                 shape [frames, bands], low, high, values: base64 of bytes, from low (0) to high (255)
    memory       inputs, outputs (probabilities) and targets, matrices [steps, channels] as in operators; answer (its
                 first step), locations (those in use); the rows of the maps are steps, the columns locations
    generation   prompt (number of its tokens; null if nothing was generated), steps, one after each token:
                 [{candidates [[token, probability]], probability and rank of the next token (null after the last)}]
    operators    [{layer, head, score, align, scale, biased, adds_to_output, and matrices query, key, value, scores,
                 allowed, weights, output: {shape, values}}], values as base64 of little-endian float32
    beams        hypotheses (examples with one map), leaves (the last node of each), nodes [{step, parent (index or -1),
                 token, log_p, score (null if it goes on), kept}]
    map          layer, rows and columns (indices into texts), mask (index into masks, or null), heads, weights,
                 statistics, overview
    masks        of an example: {encoding: "runs", values: little-endian uint32 [rows, 2], the first allowed column of
                 each row and the one after the last}, or {encoding: "bits", values: the bits of [rows, columns], 1
                 where attention is allowed, most significant bit first}
    weights      {encoding: "dense", steps}: base64 of little-endian uint16 [heads, rows, columns]; a weight is
                 step / 65535
                 {encoding: "sparse", k, columns, steps}: the k largest weights of each row, largest first, as uint16
                 [heads + 1, rows, k]; the last head is the average of the others
    statistics   {peak, entropy, distance, diagonality}: a list each, over heads, the average of the heads last
    overview     {height, width, values}: of large maps, the largest weight of each block, as uint16
                 [heads + 1, height, width]

Pages stay under 15 MB: `packing.plan` stores fewer weights of each row, then fewer layers, then fewer examples, and the
notes say so.
"""

from qkv.visualize.explorer.document_part import document_answer
from qkv.visualize.explorer.explanation_part import explanation_answer
from qkv.visualize.explorer.memory_part import memory_answer
from qkv.visualize.explorer.page import save_page, served_page
from qkv.visualize.explorer.payload import build_payload

__all__ = ["build_payload", "document_answer", "explanation_answer", "memory_answer", "save_page", "served_page"]
