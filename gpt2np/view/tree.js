// The texts written from one prompt, as a tree of tokens. Nothing is ever removed from it.

/**
 * What tells a token from others after the same text: its id, and the steering under which it has
 * its probability.
 */
const keyOf = ({ id, how }) => `${id} ${how?.steering[0] ? how.steering : ""}`;

export class Tree {
  /** `ids` are the prompt's; `text` is the prompt as typed. */
  constructor(text, ids) {
    this.text = text;
    this.ids = ids;
    this.root = { id: null, parent: null, children: [] };
  }

  /**
   * Add a token after a node, with `how` it was written if that is known; return the node, which
   * may have existed before.
   */
  add(parent, token) {
    let node = parent.children.find((child) => keyOf(child) === keyOf(token));
    if (!node) {
      node = { ...token, parent, children: [] };
      parent.children.push(node);
    }
    if (token.logprob !== undefined) Object.assign(node, token);
    return node;
  }

  leaves(node = this.root) {
    return node.children.length ? node.children.flatMap((child) => this.leaves(child)) : [node];
  }
}

/** The nodes from the first token after the prompt to a node. */
export function pathTo(node) {
  const nodes = [];
  for (let at = node; at.parent; at = at.parent) nodes.push(at);
  return nodes.reverse();
}

/**
 * The tree as lists of ids that can be put into an address: [ids, children] for each branch point.
 */
export function packTree(node) {
  const ids = [];
  let at = node;
  while (at.children.length === 1) ids.push((at = at.children[0]).id);
  return [ids, at.children.map((child) => [[child.id], packTree(child)])];
}

export function unpackTree(tree, parent, [ids, branches]) {
  let at = parent;
  for (const id of ids) at = tree.add(at, { id });
  for (const [first, rest] of branches) unpackTree(tree, tree.add(at, { id: first[0] }), rest);
}
