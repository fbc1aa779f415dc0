// The texts written from one prompt, as a tree of tokens. Nothing is ever removed from it.

/** What tells a token from others after the same text: its id, and the parts that were off. */
const keyOf = ({ id, off = "" }) => `${id} ${off}`;

export class Tree {
  constructor(text, ids, model) {
    Object.assign(this, { text, ids, model });
    this.root = /** @type {any} */ ({ id: null, parent: null, children: [] });
  }

  /** Add a token after a node; return its node, which may have existed before. */
  add(parent, token) {
    let node = parent.children.find((child) => keyOf(child) === keyOf(token));
    if (!node) {
      node = { ...token, parent, children: [] };
      parent.children.push(node);
    }
    if (token.logprob !== undefined) Object.assign(node, token);
    return node;
  }
}

export function pathTo(node) {
  const nodes = [];
  for (let at = node; at?.parent; at = at.parent) nodes.push(at);
  return nodes.reverse();
}

/** An id, with the parts that are off if they are others than before it. */
const packed = ({ id, off = "", parent }) => (off === (parent.off ?? "") ? id : [id, off]);

function unpacked(tree, parent, each) {
  const [id, off = parent.off ?? ""] = [each].flat();
  return tree.add(parent, { id, off });
}

export const packPath = (node) => pathTo(node).map(packed);
export const unpackPath = (tree, path) =>
  path.reduce((node, each) => unpacked(tree, node, each), tree.root);
