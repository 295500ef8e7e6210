// The views, in the order of their tabs. See the docstring of the Python package for the interface.

import { matrix } from "./matrix.js";
import { lines } from "./lines.js";
import { model } from "./model.js";
import { beams } from "./beams.js";
import { picture } from "./picture.js";
import { caption } from "./caption.js";
import { documents } from "./document.js";
import { episode } from "./episode.js";
import { explanation } from "./explanation.js";
import { generation } from "./generation.js";
import { operator } from "./operator.js";
import { memory } from "./memory.js";
import { audio } from "./audio.js";
import { compare } from "./compare.js";

export const VIEWS = [picture, caption, documents, audio, memory, episode, explanation, matrix, lines, beams,
  generation, model, operator, compare];
