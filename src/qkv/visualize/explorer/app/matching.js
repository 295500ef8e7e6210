// Equal tokens of two sequences, in order.

const MOST_PAIRS = 2 ** 22; // of a table; longer sequences are matched at their beginning and end only

const same = (a, b) => a === b || (a.trim() !== "" && a.trim() === b.trim()); // " cat" and "cat" are equal

/**
 * The longest common subsequence of two lists of tokens, as [forward, backward]: the index of the equal token in the
 * other list, -1 if there is none.
 */
export function matching(a, b) {
  const forward = new Int32Array(a.length).fill(-1), backward = new Int32Array(b.length).fill(-1);
  const match = (i, j) => { forward[i] = j; backward[j] = i; };
  let first = 0, [n, m] = [a.length, b.length];
  while (first < n && first < m && same(a[first], b[first])) match(first, first++);
  while (n > first && m > first && same(a[n - 1], b[m - 1])) match(--n, --m);
  const [high, wide] = [n - first, m - first];
  if (!high || !wide || (high + 1) * (wide + 1) > MOST_PAIRS) return [forward, backward];
  const lengths = new Uint16Array((high + 1) * (wide + 1)), at = (i, j) => i * (wide + 1) + j; // of what follows i, j
  for (let i = high - 1; i >= 0; i--)
    for (let j = wide - 1; j >= 0; j--)
      lengths[at(i, j)] = same(a[first + i], b[first + j]) ? lengths[at(i + 1, j + 1)] + 1
        : Math.max(lengths[at(i + 1, j)], lengths[at(i, j + 1)]);
  for (let i = 0, j = 0; i < high && j < wide;)
    if (same(a[first + i], b[first + j])) match(first + i++, first + j++);
    else if (lengths[at(i + 1, j)] >= lengths[at(i, j + 1)]) i++;
    else j++;
  return [forward, backward];
}
